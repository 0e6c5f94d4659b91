"""One file a revision; a landed one is never edited."""
