"""Small helpers without imports of other packages: names, numbers, progress, files."""
