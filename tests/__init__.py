"""The tests, in the same directories as the package; ``support`` holds what several of them share."""
