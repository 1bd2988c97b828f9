import { describe, expect, it } from "vitest";
import { dark, light, type Theme } from "../src/style/tokens";

type RGB = [number, number, number];

const rgb = (hex: string): RGB => [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16)) as RGB;
const linear = (n: number) => (n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4);
const luminance = (c: RGB) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);

function contrast(a: string, b: string): number {
  const [x, y] = [luminance(rgb(a)), luminance(rgb(b))];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}

const states = ["fresh", "running", "waiting", "stale", "failed", "quarantined"] as const;

describe.each([
  ["light", light],
  ["dark", dark],
])("theme %s", (_, theme: Theme) => {
  it("has readable texts on every background", () => {
    for (const text of ["text", "muted", "accent"] as const) {
      for (const back of ["bg", "surface", "raised", "hover", "sunken", "accent-soft"] as const) {
        expect(contrast(theme[text], theme[back]), `${text} on ${back}`).toBeGreaterThanOrEqual(4.5);
      }
    }
    expect(contrast(theme["on-accent"], theme.accent)).toBeGreaterThanOrEqual(4.5);
  });

  it("has readable states, also in badges", () => {
    for (const state of states) {
      for (const back of [theme.bg, theme.surface, theme.hover, theme[`${state}-soft`], theme["accent-soft"]]) {
        expect(contrast(theme[state], back), `${state} on ${back}`).toBeGreaterThanOrEqual(4.5);
      }
    }
    expect(contrast(theme.text, theme["failed-soft"])).toBeGreaterThanOrEqual(4.5);
    expect(contrast(theme.text, theme["stale-soft"])).toBeGreaterThanOrEqual(4.5);
    expect(contrast(theme.surface, theme.failed), "the count in the header").toBeGreaterThanOrEqual(4.5);
  });

  it("has visible controls and bars", () => {
    for (const mark of [theme.strong, theme.accent, ...states.map((s) => theme[s])]) {
      expect(contrast(mark, theme.surface)).toBeGreaterThanOrEqual(3);
    }
  });
});
