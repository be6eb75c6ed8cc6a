"""The HTML report: one file that needs no network, with its template, style and script as real files."""
