"""Documents of headings, paragraphs, tables and figures, and their conversion to HTML and Markdown.

The HTML page is self-contained: it loads no other file. The functions return text and write no file.
"""

from swivel.reports.document.html import write_html
from swivel.reports.document.markdown import write_markdown
from swivel.reports.document.model import Block, Cell, Details, Document, Heading, Paragraph, Picture, Table

__all__ = [
    "Block",
    "Cell",
    "Details",
    "Document",
    "Heading",
    "Paragraph",
    "Picture",
    "Table",
    "write_html",
    "write_markdown",
]
