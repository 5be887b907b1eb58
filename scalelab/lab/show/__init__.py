"""Shows a study: tables, figures, charts, cards and the report."""
