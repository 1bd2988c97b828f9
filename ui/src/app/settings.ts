import { useSyncExternalStore } from "react";
import { apply, type ThemeName } from "../style/tokens";
import { read, type Settings, system, themeOf, write } from "./stored";

const listeners = new Set<() => void>();

let current = read();

export const themeName = (): ThemeName => themeOf(current);

export function change(to: Partial<Settings>) {
  current = { ...current, ...to };
  write(current);
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
  system.addEventListener("change", show); // early.ts has applied the theme
  // Another tab has changed the settings.
  window.addEventListener("storage", () => {
    current = read();
    show();
  });
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
