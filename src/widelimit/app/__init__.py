"""What a person at the command line meets: runs on files, published studies, pages, pictures."""
