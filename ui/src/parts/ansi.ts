// Parts of a line of a log. Codes for colours become class names; all other control sequences are dropped.
export interface Part {
  text: string;
  style: string; // "" or names of classes
}

const colours = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const sequence =
  /\x1b\[([0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

export function ansi(line: string): Part[] {
  if (!/[\x1b\x00-\x08\x0b-\x1f\x7f]/.test(line)) return [{ text: line, style: "" }];
  const parts: Part[] = [];
  let [bold, colour, from] = [false, "", 0];
  const push = (to: number) => {
    if (to > from)
      parts.push({ text: line.slice(from, to), style: [bold && "bold", colour].filter(Boolean).join(" ") });
  };
  for (const match of line.matchAll(sequence)) {
    push(match.index);
    from = match.index + match[0].length;
    if (match[2] !== "m") continue;
    for (const code of (match[1] || "0").split(";").map(Number)) {
      if (code === 0) [bold, colour] = [false, ""];
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = "";
      else if (code >= 30 && code <= 37) colour = colours[code - 30] ?? "";
      else if (code >= 90 && code <= 97) colour = colours[code - 90] ?? "";
    }
  }
  push(line.length);
  return parts;
}
