"""The tests, folder by folder as the package has them; what several share is in support."""
