"""Arrays in files: parameters of one's own and of others, and what a network says of samples."""
