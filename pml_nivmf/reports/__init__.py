"""Turn run folders into tables, figures and an HTML page. Never imports experiments."""
