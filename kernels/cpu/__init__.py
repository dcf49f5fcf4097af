"""Native CPU kernels (C++ on ATen) and their build."""
