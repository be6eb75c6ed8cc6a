"""A training script as text and syntax tree, with the edits that mutation operators make.

Edits replace spans of the text, so a mutant keeps the comments, the names and (after its edit) nearly all line numbers
of the script.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class EditFailed(Exception):
    """The edits of a mutant overlap, or its text is not valid Python."""


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces the characters from `start` to `end` (offsets into the text of the script) by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Script:
    """The source text of a training script. Immutable; its tree is parsed once.

    Raises SyntaxError where the text is no Python.
    """

    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree; each node has an attribute `parent` (None for the module)."""
        tree = ast.parse(self.text)
        tree.parent = None  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                child.parent = node  # type: ignore[attr-defined]
        return tree

    @functools.cached_property
    def _line_offsets(self) -> list[int]:
        offsets = [0]
        for line in self.text.split("\n"):  # as ast does: `splitlines` would also split at form feeds
            offsets.append(offsets[-1] + len(line) + 1)
        return offsets

    def _offset(self, line: int, column: int) -> int:
        """The offset of a position as `ast` counts it (lines from 1, columns in UTF-8 bytes)."""
        start = self._line_offsets[line - 1]
        line_text = self.text[start : self._line_offsets[line]]
        return start + len(line_text.encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> tuple[int, int]:
        """The offsets of the first character of `node` and of the one after its last."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def source(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> str:
        """The text of `node`."""
        start, end = self.span(node)
        return self.text[start:end]

    def indent(self, statement: ast.stmt) -> str:
        """The white space in front of a statement (of its line where it shares one)."""
        start = self._line_offsets[statement.lineno - 1]
        line = self.text[start : self.span(statement)[0]]
        return line[: len(line) - len(line.lstrip())]

    def lines(self, *statements: ast.stmt) -> str:
        """The text from the first to the last of some statements of one block, without their indent."""
        text = self.text[self.span(statements[0])[0] : self.span(statements[-1])[1]]
        return text.replace("\n" + self.indent(statements[0]), "\n")

    # Edits

    def replace(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword, text: str) -> Edit:
        """Put `text` in the place of `node`. A statement's further lines get its indent."""
        if isinstance(node, ast.stmt):
            text = text.replace("\n", "\n" + self.indent(node))
        return Edit(*self.span(node), text)

    def remove(self, statement: ast.stmt) -> Edit:
        """Remove a statement; `pass` stays where its block would be empty."""
        if len(self.block(statement)) == 1:
            return self.replace(statement, "pass")
        start, end = self.span(statement)
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", end)
        rest = self.text[end : len(self.text) if line_end < 0 else line_end].strip()
        if self.text[line_start:start].strip() or not (rest == "" or rest.startswith("#")):
            return Edit(start, end, "pass")  # it shares its line, with `;` or the head of its block
        return Edit(line_start, len(self.text) if line_end < 0 else line_end + 1, "")

    def insert_before(self, statement: ast.stmt, text: str) -> Edit:
        """Insert the line or lines `text` (without indent) in front of a statement of the same block."""
        start = self.span(statement)[0]
        indent = self.indent(statement)
        return Edit(start, start, text.replace("\n", "\n" + indent) + "\n" + indent)

    def insert_after(self, statement: ast.stmt, text: str) -> Edit:
        """Insert the line or lines `text` (without indent) after a statement, in the same block."""
        end = self.span(statement)[1]
        line_end = self.text.find("\n", end)
        end = len(self.text) if line_end < 0 else line_end  # after a comment in the same line
        indent = "\n" + self.indent(statement)
        return Edit(end, end, indent + text.replace("\n", indent))

    def move_before(self, statement: ast.stmt, anchor: ast.stmt) -> list[Edit]:
        """Move a statement to the place in front of another."""
        return [self.remove(statement), self.insert_before(anchor, self.lines(statement))]

    def move_after(self, statement: ast.stmt, anchor: ast.stmt) -> list[Edit]:
        """Move a statement to the place after another."""
        return [self.remove(statement), self.insert_after(anchor, self.lines(statement))]

    def wrap(self, head: str, *statements: ast.stmt) -> Edit:
        """Put some statements of one block into a block of their own: `head` is `if x:`, `with y:` ..."""
        start, end = self.span(statements[0])[0], self.span(statements[-1])[1]
        text = head + "\n" + textwrap.indent(self.lines(*statements), "    ")
        return Edit(start, end, text.replace("\n", "\n" + self.indent(statements[0])))

    def unwrap(self, statement: ast.With | ast.If | ast.For) -> Edit:
        """Put the body of a compound statement in its place."""
        return self.replace(statement, self.lines(*statement.body))

    def apply(self, edits: Sequence[Edit]) -> Script:
        """The script with all edits made. Raises EditFailed where they overlap or give no valid Python."""
        parts, position = [], 0
        for edit in sorted(edits):
            if edit.start < position:
                raise EditFailed("edits overlap")
            parts += [self.text[position : edit.start], edit.text]
            position = edit.end
        changed = Script("".join([*parts, self.text[position:]]))
        try:
            ast.parse(changed.text)
        except SyntaxError as error:
            raise EditFailed(f"the mutant is not valid Python: {error}") from error
        return changed

    # Structure

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that `statement` stands in."""
        parent = statement.parent  # type: ignore[attr-defined]
        for field in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(parent, field, None)
            if isinstance(block, list) and any(entry is statement for entry in block):
                return block
        raise ValueError("the statement stands in no block")

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What encloses `node`, the nearest first."""
        parent = getattr(node, "parent", None)
        while parent is not None:
            yield parent
            parent = parent.parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that `node` is or stands in."""
        for candidate in (node, *self.parents(node)):
            if isinstance(candidate, ast.stmt):
                return candidate
        raise ValueError("the node stands in no statement")

    def walk(self, *kinds: type[ast.AST], inside: ast.AST | None = None) -> Iterator[ast.AST]:
        """All nodes of the given kinds, in the order of the text; `inside` limits them to a part of the tree."""
        if inside is None or inside is self.tree:
            return (node for node in self._nodes if isinstance(node, kinds))
        return iter(sorted((node for node in ast.walk(inside) if isinstance(node, kinds)), key=_position))

    @functools.cached_property
    def _nodes(self) -> list[ast.AST]:
        return sorted(ast.walk(self.tree), key=_position)


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
