// The colours of the page. The style sheet takes them from here through custom properties, so that unit
// tests check the same values that a browser shows.
export interface Theme {
  bg: string;
  surface: string;
  raised: string;
  sunken: string;
  hover: string;
  border: string;
  strong: string;
  faint: string;
  muted: string;
  text: string;
  accent: string;
  "accent-soft": string;
  "on-accent": string;
  fresh: string;
  running: string;
  waiting: string;
  stale: string;
  failed: string;
  quarantined: string;
  "fresh-soft": string;
  "running-soft": string;
  "waiting-soft": string;
  "stale-soft": string;
  "failed-soft": string;
  "quarantined-soft": string;
}

export const light: Theme = {
  bg: "#f7f8fa",
  surface: "#ffffff",
  raised: "#ffffff",
  sunken: "#eff1f4",
  hover: "#f1f3f7",
  border: "#e1e4ea",
  strong: "#858d9b",
  faint: "#666e7b",
  muted: "#555d6a",
  text: "#181b20",
  accent: "#2857c5",
  "accent-soft": "#e8eefb",
  "on-accent": "#ffffff",
  fresh: "#13743c",
  running: "#1f5fd0",
  waiting: "#5d6675",
  stale: "#8f5600",
  failed: "#c3232c",
  quarantined: "#8233b8",
  "fresh-soft": "#e3f4e9",
  "running-soft": "#e5edfc",
  "waiting-soft": "#eceef2",
  "stale-soft": "#fbefd9",
  "failed-soft": "#fce8e8",
  "quarantined-soft": "#f3e8fb",
};

export const dark: Theme = {
  bg: "#0f1115",
  surface: "#161920",
  raised: "#1d212a",
  sunken: "#0b0d10",
  hover: "#1e222b",
  border: "#2a2f3a",
  strong: "#6b7482",
  faint: "#8a93a1",
  muted: "#a3acb9",
  text: "#e8ebf0",
  accent: "#86aaf8",
  "accent-soft": "#1d2a47",
  "on-accent": "#0d1526",
  fresh: "#55c785",
  running: "#7aa7ff",
  waiting: "#a7b0be",
  stale: "#e2ae55",
  failed: "#ff8585",
  quarantined: "#cc9af2",
  "fresh-soft": "#14301f",
  "running-soft": "#1a2a49",
  "waiting-soft": "#252a33",
  "stale-soft": "#37290f",
  "failed-soft": "#421b1e",
  "quarantined-soft": "#331f43",
};

export type ThemeName = "light" | "dark";

// apply sets the custom properties of a theme. Custom properties that a script sets on an element are
// allowed by the content security policy; a style element is not.
export function apply(name: ThemeName) {
  const root = document.documentElement;
  root.dataset.theme = name;
  root.style.colorScheme = name;
  for (const [key, value] of Object.entries(name === "dark" ? dark : light)) {
    root.style.setProperty(`--${key}`, value);
  }
}
