import { defineConfig } from "vite";

// `npm run dev` shows the page against a running `cantle up`; set CANTLE_SERVER where that is not the default address.
declare const process: { env: Record<string, string | undefined> };
const server = process.env["CANTLE_SERVER"] ?? "http://127.0.0.1:8008";

export default defineConfig({
  base: "/ui/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: { target: "es2024", assetsInlineLimit: 0, reportCompressedSize: false, chunkSizeWarningLimit: 6000, rolldownOptions: { input: ["index.html", "plots.html"] } },
  server: { proxy: { "/ui/-/": { target: server } } },
});
