import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";
import { early } from "./early.ts";
import { licences, workerLicences } from "./licences.ts";

// The output depends on the sources alone: chunks are named by their content, and nothing contains a
// date or a path of this machine. `make ui` packs it for embedding.
export default defineConfig({
  base: "/",
  plugins: [react(), licences(), early()],
  worker: {
    format: "es",
    plugins: () => [workerLicences()],
    rollupOptions: { output: { entryFileNames: "assets/[name]-[hash].js", chunkFileNames: "assets/[name]-[hash].js" } },
  },
  build: {
    outDir: "build",
    emptyOutDir: true,
    target: "es2023",
    assetsInlineLimit: 0, // the content security policy allows no inline scripts
    modulePreload: { polyfill: false },
    rollupOptions: {
      input: { index: "index.html", early: "src/early.ts" },
      output: {
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
});
