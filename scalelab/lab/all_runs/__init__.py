"""All runs below some folders: as rows, as pairs, and as points of one kind."""
