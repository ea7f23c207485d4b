// The pictures of the web page in README and docs: `make screenshots` takes them again.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Cantle, ROOT, closeBrowser, live, open, until } from "./cantle.mjs";

const OUT = path.join(ROOT, "docs/screenshots");
const QUEUES = ["train=2", "finetune=0.5", "notebook=0.25", "eval=1"];
/** Takes 1 GiB of each of its GPUs with every epoch, up to a limit, and prints as a training does. */
const TRAINING = `
import ctypes, sys, time
cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
count = ctypes.c_int()
cuda.cuDeviceGetCount(ctypes.byref(count))
for epoch in range(600):
    for device in range(count.value):
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        cuda.cuCtxSetCurrent(context)
        if epoch < int(sys.argv[1]):
            cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30))
    print(f"epoch {epoch:3}  loss {3.2 / (epoch + 1.5) + 0.1:.4f}  lr 3.0e-04", flush=True)
    time.sleep(0.5)
`;

const dir = mkdtempSync(path.join(tmpdir(), "cantle-screenshots-"));
const prices = path.join(dir, "prices.toml");
writeFileSync(prices, 'currency = "EUR"\n[[price]]\nmodel = "*"\ngpu_hour = 2.5\n');
const cantle = await Cantle.start("4xA100-40GB", "up", "--worker-name", "dgx01", "--prices", prices, "--queue", ...QUEUES);
try {
  const train = (queue, project, name, epochs) =>
    cantle.cli("submit", "--queue", queue, "--project", project, "--name", name, "--", "python3", "-c", TRAINING, String(epochs));

  cantle.cli("quota", "set", "llm", "--gpu", "2.5");
  cantle.cli("quota", "set", "vision", "--gpu", "0.5", "--limit", "2");
  cantle.cli("quota", "set", "speech", "--gpu", "1");
  train("train", "llm", "llama-8b-sft", 29);
  const shown = train("finetune", "vision", "vit-b16-cars", 14);
  train("finetune", "speech", "whisper-small-de", 9);
  train("notebook", "vision", "ana-notebook", 6);
  train("notebook", "speech", "ben-notebook", 3);
  cantle.cli("submit", "--queue", "notebook", "--project", "vision", "--name", "quick-check", "--wait", "--", "python3", "-c", "print('fine')");
  train("train", "llm", "llama-8b-dpo", 30);
  for (const name of ["eval-mmlu", "eval-gsm8k", "eval-humaneval"]) train("eval", "llm", name, 20);

  const PAGES = [["gpus", "/gpus?color=project"], ["queues", "/queues"], ["tasks", "/tasks"], ["task", `/tasks/${shown}`], ["new", "/new"], ["projects", "/projects"], ["usage", "/usage"]];

  mkdirSync(OUT, { recursive: true });
  await until("the training to be well on its way", () => cantle.json("gpus").some((gpu) => gpu.slices.some((slice) => slice.memory_used_bytes > 13 * 2 ** 30)), 60_000);
  for (const [name, address] of PAGES) {
    const page = await open(cantle, address, { colorScheme: "light", viewport: { width: 1280, height: 860 } });
    await live(page);
    await sleep(700);
    await page.screenshot({ path: path.join(OUT, `${name}.png`) });
    await page.context().close();
  }
} finally {
  await closeBrowser();
  await cantle.close();
  rmSync(dir, { recursive: true });
}
