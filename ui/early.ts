// Makes the page load early what its first screen needs.
import type { HtmlTagDescriptor, Plugin } from "vite";

// early adds the script src/early.ts to the page: the browser shows nothing before it has run. It also adds hints to
// load the files of the overview, the first screen of most visits, at the same time as those of the page.
export function early(): Plugin {
  return {
    name: "servo-early",
    transformIndexHtml: {
      order: "post",
      handler(html, { bundle }) {
        if (!bundle) return html; // a development server
        const chunks = Object.values(bundle).filter((file) => file.type === "chunk");
        const script = chunks.find((chunk) => chunk.name === "early" && chunk.isEntry);
        const overview = chunks.find((chunk) => chunk.facadeModuleId?.endsWith("/pages/overview.tsx"));
        if (!script || !overview) throw new Error("the build has no script for src/early.ts or src/pages/overview.tsx");
        const hint = (attrs: Record<string, string>): HtmlTagDescriptor => ({
          tag: "link",
          attrs: { ...attrs, crossorigin: "" },
          injectTo: "head",
        });
        const tags: HtmlTagDescriptor[] = [
          {
            tag: "script",
            attrs: { type: "module", async: true, blocking: "render", crossorigin: "", src: `/${script.fileName}` },
            injectTo: "head-prepend",
          },
        ];
        const wanted: string[] = [];
        const want = (name: string) => {
          if (name === script.fileName || wanted.includes(name)) return;
          wanted.push(name);
          for (const one of chunks.find((chunk) => chunk.fileName === name)?.imports ?? []) want(one);
        };
        want(overview.fileName);
        for (const name of wanted)
          if (!html.includes(name)) tags.push(hint({ rel: "modulepreload", href: `/${name}` }));
        const styles = chunks
          .filter((chunk) => wanted.includes(chunk.fileName))
          .flatMap((chunk) => [...(chunk.viteMetadata?.importedCss ?? [])]);
        for (const name of new Set(styles))
          if (!html.includes(name)) tags.push(hint({ rel: "preload", as: "style", href: `/${name}` }));
        return { html, tags };
      },
    },
  };
}
