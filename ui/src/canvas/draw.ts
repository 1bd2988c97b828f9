import { useEffect, useRef, useState } from "react";
import { useTheme } from "../app/settings";
import type { Theme } from "../style/tokens";
import { dark, light } from "../style/tokens";

// useColors returns the colours of the theme, for canvases.
export function useColors(): Theme {
  return useTheme() === "dark" ? dark : light;
}

// useSize returns the size of an element, and follows its changes.
export function useSize<T extends HTMLElement>() {
  const ref = useRef<T>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) setSize({ width: Math.floor(entry.contentRect.width), height: Math.floor(entry.contentRect.height) });
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return { ref, ...size };
}

// prepare sizes a canvas for the resolution of the screen, clears it, and returns its context.
export function prepare(canvas: HTMLCanvasElement, width: number, height: number) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  if (!context) return undefined;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const patterns = new Map<string, CanvasPattern | null>();

// hatch returns a pattern of diagonal lines in a colour, or of lines in both directions.
export function hatch(context: CanvasRenderingContext2D, colour: string, crossed = false): CanvasPattern | string {
  const name = crossed ? `x ${colour}` : colour;
  if (!patterns.has(name)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const draw = tile.getContext("2d");
    if (draw) {
      draw.strokeStyle = colour;
      draw.lineWidth = 1.6;
      draw.beginPath();
      for (const at of [-3, 3, 9]) {
        draw.moveTo(at - 4, 7);
        draw.lineTo(at + 4, -1);
        if (!crossed) continue;
        draw.moveTo(at - 4, -1);
        draw.lineTo(at + 4, 7);
      }
      draw.stroke();
    }
    patterns.set(name, context.createPattern(tile, "repeat"));
  }
  return patterns.get(name) ?? colour;
}
