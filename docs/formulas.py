"""Turns a formula in plain text into MathML, which browsers draw without a script: `dL/dx = dL/dy / (2 sqrt(x))`.

One notation serves docstrings, which a terminal shows, and pages, where a formula is between dollar signs:

- `dL/dx` is a partial derivative.
- `a / b` divides the term before the slash by the term after it. In a line of its own it is a fraction.
- `x^2`, `x_k` and `x_(k+1)` have an exponent or an index. `gradient_scale` is one name.
- `f(x)` without a space is a call, and `a (x)` with a space is a product.
- Words such as `where` are text. Two spaces or more are a gap.
"""

from __future__ import annotations

import html
import re

TOKEN = re.compile(
    r" +|d[A-Za-z]+/d[A-Za-z]+|\d+(?:\.\d+)?|[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z]{2,})*|\.\.\.|[<>]=|[-+*/^_=<>,()\[\]|]"
)
SYMBOLS = {
    "-": "&minus;",
    "*": "·",
    "<=": "≤",
    ">=": "≥",
    "...": "…",
    "alpha": "&alpha;",
    "beta": "β",
    "pi": "π",
    "sum": "∑",
}
OPERATORS = ("+", "-", "*", "=", "<", ">", "<=", ">=", ",", "...")
WORDS = ("above", "and", "below", "else", "for", "if", "masked", "not", "where", "with")
CLOSING = {"(": ")", "[": "]", "|": "|"}
SLASH = '<mo lspace="0" rspace="0">/</mo>'
PRODUCT, GAP = '<mspace width="0.2em"/>', '<mspace width="1.5em"/>'


def to_mathml(text: str, is_line: bool = False) -> str:
    """Returns a formula as a `math` element, for a line of its own or for the middle of a sentence.

    Raises:
        ValueError: A character is not in the notation, a term is missing, or a parenthesis is.
    """
    tokens = TOKEN.findall(text)
    if "".join(tokens) != text:
        raise ValueError(f"{text!r} has a character that is not in the notation of formulas")
    formula = _Formula(tokens, is_line)
    content = formula.row("")
    if formula.tokens:
        raise ValueError(f"{text!r} closes a parenthesis that is not open")
    style = ' displaystyle="true"' if is_line else ""
    return f"<math{style}>{content}</math>"


class _Formula:
    """The tokens of a formula, from which the methods read."""

    def __init__(self, tokens: list[str], is_line: bool):
        self.tokens, self.is_line = tokens, is_line

    def follows(self, *tokens: str) -> bool:
        """Whether one of some tokens is next."""
        return bool(self.tokens) and self.tokens[0] in tokens

    def row(self, end: str) -> str:
        """Reads terms and operators up to a closing parenthesis."""
        parts: list[str] = []
        is_after_term = False
        while self.tokens and not self.follows(end):
            is_term = False
            if self.tokens[0].isspace():
                is_term = is_after_term
                parts += [GAP] * (len(self.tokens.pop(0)) > 1)
            elif self.follows(*OPERATORS):
                # A sign has no space after it, unlike an operator.
                sign = ' form="prefix"' if self.follows("-") and not is_after_term else ""
                parts.append(_element(f"mo{sign}", self.tokens.pop(0)))
            elif self.follows(*WORDS):
                before = "" if not parts or parts[-1].endswith(("&nbsp;</mtext>", GAP)) else "&nbsp;"
                word = self.tokens.pop(0)
                parts.append(f"<mtext>{before}{word}{'&nbsp;' if self.follows(' ') else ''}</mtext>")
            else:
                is_term = True
                parts += [PRODUCT] * is_after_term
                parts.append(self.quotient())
            is_after_term = is_term
        return "".join(parts)

    def inside(self, opening: str) -> str:
        """Reads up to the parenthesis that closes `opening`, and drops it."""
        content = self.row(CLOSING[opening])
        if not self.tokens:
            raise ValueError(f"{opening!r} is not closed in a formula")
        self.tokens.pop(0)
        return content

    def quotient(self) -> str:
        """Reads a term, and the terms that divide it."""
        term, bare = self.term()
        while self.follows("/") or self.tokens[:2] == [" ", "/"]:
            while self.follows(" ", "/"):
                self.tokens.pop(0)
            divisor, bare_divisor = self.term()
            term = bare = self.over(bare, bare_divisor) if self.is_line else self.over(term, divisor)
        return term

    def over(self, above: str, below: str) -> str:
        if self.is_line:
            return f"<mfrac><mrow>{above}</mrow><mrow>{below}</mrow></mfrac>"
        return f"<mrow>{above}{SLASH}{below}</mrow>"

    def term(self) -> tuple[str, str]:
        """Reads a number, a name, a call, a derivative or a group. Returns it with and without parentheses."""
        token = self.tokens.pop(0) if self.tokens else ""
        if "/d" in token:
            above, below = (f"<mi>∂</mi>{_element('mi', name[1:])}" for name in token.split("/"))
            derivative = self.over(above, self.with_scripts(below))
            return derivative, derivative
        if token in CLOSING:
            content = self.inside(token)
            group = f"<mrow><mo>{html.escape(token)}</mo>{content}<mo>{CLOSING[token]}</mo></mrow>"
            term = self.with_scripts(group)
            return term, content if token == "(" and term == group else term
        if not token[:1].isalnum():
            raise ValueError(f"a term is missing before {token!r} in a formula")
        term = self.with_scripts(self.named(token))
        return term, term

    def named(self, token: str) -> str:
        """Reads the arguments of a call. Returns it, or a number, or a name."""
        if not self.follows("("):
            return _element("mn" if token[0].isdigit() else "mo" if token == "sum" else "mi", token)
        content = self.inside(self.tokens.pop(0))
        if token == "sqrt":
            return f"<msqrt>{content}</msqrt>"
        return f"<mrow>{_element('mi', token)}<mo>&#x2061;</mo><mo>(</mo>{content}<mo>)</mo></mrow>"

    def with_scripts(self, value: str) -> str:
        """Reads the exponent or the index of a value."""
        while self.follows("^", "_"):
            tag = "msup" if self.tokens.pop(0) == "^" else "msub"
            token = self.tokens.pop(0) if self.tokens else ""
            if not (token == "(" or token.isalnum()):
                raise ValueError(f"an exponent or an index is missing before {token!r} in a formula")
            script = self.inside(token) if token == "(" else self.named(token)
            value = f"<{tag}><mrow>{value}</mrow><mrow>{script}</mrow></{tag}>"
        return value


def _element(tag: str, token: str) -> str:
    return f"<{tag}>{SYMBOLS.get(token) or html.escape(token)}</{tag.partition(' ')[0]}>"
