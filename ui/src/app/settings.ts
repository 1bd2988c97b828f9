import { useSyncExternalStore } from "react";
import { apply, type ThemeName } from "../style/tokens";

// What a person prefers. It stays in this browser.
interface Settings {
  theme: ThemeName | "system";
  utc: boolean;
}

const key = "servo.settings";
const listeners = new Set<() => void>();
const system = window.matchMedia("(prefers-color-scheme: dark)");

function read(): Settings {
  try {
    const stored = JSON.parse(localStorage.getItem(key) ?? "{}") as Partial<Settings>;
    const theme = stored.theme === "light" || stored.theme === "dark" ? stored.theme : "system";
    return { theme, utc: stored.utc === true };
  } catch {
    return { theme: "system", utc: false };
  }
}

let current = read();

export function themeName(): ThemeName {
  if (current.theme !== "system") return current.theme;
  return system.matches ? "dark" : "light";
}

export function change(to: Partial<Settings>) {
  current = { ...current, ...to };
  try {
    localStorage.setItem(key, JSON.stringify(current));
  } catch {
    // A browser without storage forgets the settings.
  }
  show();
}

export function toggleTheme() {
  change({ theme: themeName() === "dark" ? "light" : "dark" });
}

function show() {
  apply(themeName());
  for (const tell of listeners) tell();
}

export function start() {
  system.addEventListener("change", show);
  apply(themeName());
}

export function useSettings(): Settings {
  return useSyncExternalStore(
    (tell) => {
      listeners.add(tell);
      return () => listeners.delete(tell);
    },
    () => current,
  );
}

export function useTheme(): ThemeName {
  useSettings();
  return themeName();
}
