// Bundles the console into engine/serve/console/static/, which is committed: running Belay needs no Node.
//
// `node build.mjs [FOLDER]` writes index.html, assets/console.js, assets/console.css and NOTICES.txt; the same sources and
// lock give the same bytes. It fails when the bundle is larger than its budget, or holds a package without a licence text.
import { build } from "esbuild";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../engine/serve/console/static"));
const BUDGET = 250 * 1024; // bytes gzipped, in all
const ACCEPTED = new Set(["MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "0BSD"]);

mkdirSync(join(out, "assets"), { recursive: true });
const result = await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.tsx" },
  outdir: join(out, "assets"),
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});
writeFileSync(join(out, "index.html"), readFileSync(join(here, "src/index.html")));
writeFileSync(join(out, "NOTICES.txt"), notices(Object.keys(result.metafile.inputs)));

const files = ["index.html", "assets/console.js", "assets/console.css"];
const size = files.reduce((sum, file) => sum + gzipSync(readFileSync(join(out, file)), { level: 9 }).length, 0);
console.log(`console: ${(size / 1024).toFixed(1)} KiB gzipped of ${BUDGET / 1024}, in ${out}`);
if (size > BUDGET) {
  console.error("the bundle is larger than its budget; leave a dependency out");
  process.exit(1);
}

// The licence texts of every package that is part of the bundle.
function notices(inputs) {
  const names = inputs.map((file) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1]).filter(Boolean);
  const parts = [...new Set(names)].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    if (!ACCEPTED.has(about.license)) throw new Error(`${name}: licence ${about.license} was not reviewed`);
    const file = readdirSync(folder).sort().find((one) => /^licen[cs]e/i.test(one));
    if (!file) throw new Error(`${name} ships no licence text`);
    const text = readFileSync(join(folder, file), "utf8").replace(/\r\n/g, "\n").trim();
    return `${name} ${about.version} (${about.license})\n\n${text}\n`;
  });
  return `The console contains these packages.\n\n${parts.join(`\n${"-".repeat(72)}\n\n`)}`;
}
