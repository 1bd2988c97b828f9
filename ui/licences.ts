import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Plugin } from "vite";

const allowed = ["MIT", "ISC", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD"];

interface Package {
  name: string;
  version: string;
  license?: string;
}

// packageOf finds the package that a module belongs to.
function packageOf(file: string): string | undefined {
  for (let dir = dirname(file); dir.includes("node_modules"); dir = dirname(dir)) {
    const manifest = join(dir, "package.json");
    if (existsSync(manifest) && (JSON.parse(readFileSync(manifest, "utf8")) as Package).version) {
      return dir;
    }
  }
  return undefined;
}

// The packages of all bundles: workers are bundled before the page that starts them.
const found = new Set<string>();

function collect(bundle: Record<string, { type: string; moduleIds?: string[] }>) {
  for (const chunk of Object.values(bundle)) {
    for (const id of chunk.moduleIds ?? []) {
      const dir = id.includes("node_modules") ? packageOf(id.replace(/^\0/, "").split("?")[0] ?? id) : undefined;
      if (dir) found.add(dir);
    }
  }
}

// workerLicences notes the packages of a worker.
export function workerLicences(): Plugin {
  return { name: "worker-licences", generateBundle: (_, bundle) => collect(bundle) };
}

// licences writes LICENSES.txt with the licence of each bundled package. The build fails if a package
// has a licence that is not on the list.
export function licences(): Plugin {
  return {
    name: "licences",
    generateBundle(_, bundle) {
      collect(bundle);
      const texts: string[] = [];
      for (const dir of found) {
        const about = JSON.parse(readFileSync(join(dir, "package.json"), "utf8")) as Package;
        if (!about.license || !allowed.includes(about.license)) {
          this.error(
            `${about.name} ${about.version} has the licence ${about.license}: allowed are ${allowed.join(", ")}`,
          );
        }
        const file = readdirSync(dir).find((name) => /^licen[cs]e/i.test(name));
        const text = file ? readFileSync(join(dir, file), "utf8").trim() : "";
        texts.push(`${about.name} ${about.version} (${about.license})\n\n${text}\n`);
      }
      texts.sort();
      const source = `The web page contains these packages.\n\n${texts.join(`\n${"-".repeat(80)}\n\n`)}`;
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source });
    },
  };
}
