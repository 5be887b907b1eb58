"""Small helpers without imports of other rooms: names, numbers, progress, files."""
