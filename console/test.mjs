// Bundles every src/**/*.test.ts and runs it under Node's own runner.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = mkdtempSync(join(tmpdir(), "belay-console-"));
try {
  const tests = readdirSync(join(here, "src"), { recursive: true }).filter((file) => file.endsWith(".test.ts")).sort();
  await build({
    absWorkingDir: here, entryPoints: tests.map((file) => join("src", file)), outdir: out, outExtension: { ".js": ".mjs" },
    bundle: true, format: "esm", platform: "node", target: ["node20"], logLevel: "warning",
  });
  const files = readdirSync(out, { recursive: true }).filter((file) => file.endsWith(".mjs")).map((file) => join(out, file));
  process.exitCode = spawnSync(process.execPath, ["--test", "--test-reporter=dot", ...files], { stdio: "inherit" }).status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
