// Light or dark: the system's choice unless the reader made one, remembered in this browser.

import { signal } from "@preact/signals";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const KEY = "cantle.theme";
const stored = localStorage.getItem(KEY);

export const theme = signal<Theme>(THEMES.find((name) => name === stored) ?? "system");

export function applyTheme(): void {
  document.documentElement.style.colorScheme = theme.value === "system" ? "light dark" : theme.value;
}

export function chooseTheme(name: Theme): void {
  theme.value = name;
  localStorage.setItem(KEY, name);
  applyTheme();
}
