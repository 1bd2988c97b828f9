// Splits SQL into parts for highlighting. It needs no grammar: words, strings, numbers and comments.
export interface Token {
  text: string;
  kind: "keyword" | "string" | "number" | "comment" | "";
}

const keywords = new Set(
  `all and any as asc between by case cast create cross date_trunc desc distinct else end except exists false filter from full
group having ilike in inner intersect interval into is join lateral left like limit not null nulls offset on or order outer over
partition pivot qualify replace right rows select then true union unnest unpivot using values when where window with`.split(
    /\s+/,
  ),
);

const parts =
  /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^']|'')*'|\$\$[\s\S]*?\$\$)|(\b\d+(?:\.\d+)?\b)|([A-Za-z_][A-Za-z0-9_]*)/g;

export function highlight(sql: string): Token[] {
  const tokens: Token[] = [];
  let from = 0;
  const plain = (to: number) => {
    if (to > from) tokens.push({ text: sql.slice(from, to), kind: "" });
  };
  for (const match of sql.matchAll(parts)) {
    const [text, comment, string, number, word] = match;
    const kind = comment
      ? "comment"
      : string
        ? "string"
        : number
          ? "number"
          : word && keywords.has(word.toLowerCase())
            ? "keyword"
            : "";
    if (kind === "") continue;
    plain(match.index);
    tokens.push({ text, kind });
    from = match.index + text.length;
  }
  plain(sql.length);
  return tokens;
}
