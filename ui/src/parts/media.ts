import { useSyncExternalStore } from "react";

// media returns a hook that reports whether the screen matches a media query.
function media(query: string): () => boolean {
  const list = window.matchMedia(query);
  const subscribe = (tell: () => void) => {
    list.addEventListener("change", tell);
    return () => list.removeEventListener("change", tell);
  };
  return () => useSyncExternalStore(subscribe, () => list.matches);
}

// useSheet reports whether the screen has no room for a panel beside a chart, so that the panel is a sheet.
export const useSheet = media("(max-width: 1080px)");

// useNarrow matches the width at which the style sheets use one column.
export const useNarrow = media("(max-width: 720px)");
