"""Pages that a person looks at: one self-contained HTML file each, light and dark, and a short form for a terminal."""
