"""Reports as pages: plain blocks in, one HTML file that asks for nothing, or Markdown, out.

Receives a `Document` of headings, paragraphs, tables and pictures; hands on text. It computes nothing and writes no
file.
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
