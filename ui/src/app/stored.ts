// The preferences of a person, as this browser stores them. This module loads no library: see early.ts.
import type { ThemeName } from "../style/tokens";

export interface Settings {
  theme: ThemeName | "system";
  utc: boolean;
}

const key = "servo.settings";

export const system = window.matchMedia("(prefers-color-scheme: dark)");

export function read(): Settings {
  try {
    const stored = JSON.parse(localStorage.getItem(key) ?? "{}") as Partial<Settings>;
    const theme = stored.theme === "light" || stored.theme === "dark" ? stored.theme : "system";
    return { theme, utc: stored.utc === true };
  } catch {
    return { theme: "system", utc: false };
  }
}

export function write(settings: Settings) {
  try {
    localStorage.setItem(key, JSON.stringify(settings));
  } catch {
    // A browser without storage forgets the settings.
  }
}

export function themeOf(settings: Settings): ThemeName {
  if (settings.theme !== "system") return settings.theme;
  return system.matches ? "dark" : "light";
}
