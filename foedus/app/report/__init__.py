"""Reports of runs as HTML, Markdown and terminal tables, and the words in them; they only read what a run holds."""
