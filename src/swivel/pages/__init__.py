"""Reports as pages: plain blocks in, one HTML file that asks for nothing, or Markdown, out.

Receives a `Document` of headings, paragraphs, tables and pictures; hands on text. It computes nothing and writes no
file.
"""

from swivel.pages.document import Block, Cell, Details, Document, Heading, Paragraph, Picture, Table
from swivel.pages.html import write_html
from swivel.pages.markdown import write_markdown

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
