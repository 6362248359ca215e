"""Settings that all tests share."""

from hypothesis import settings

settings.register_profile("poem", deadline=None, print_blob=True)  # no assertion on time; a failure prints how to repeat it
settings.load_profile("poem")
