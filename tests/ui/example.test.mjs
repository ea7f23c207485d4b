// The documented example, seen through the page: four queues, three GPUs, one task that must wait.

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, test } from "node:test";
import { Cantle, closeBrowser, live, open, until } from "./cantle.mjs";

const QUEUES = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"];

let cantle;
let page;
let beside;

before(async () => {
  cantle = await Cantle.start("3xA100-40GB,1xH100-80GB:mig", "up", "--gpus", "0-2", "--queue", ...QUEUES);
  for (const queue of ["dual_gpus", "quarter_gpu", "half_gpu", "single_gpu"]) cantle.fill(queue, queue);
  page = await open(cantle, "/");
});

after(async () => {
  await closeBrowser();
  if (beside) {
    const ended = once(beside, "exit");
    beside.kill();
    await ended;
  }
  await cantle.close();
});

const truth = () => JSON.parse(cantle.cli("sim", "truth", "-o", "json"));
const tile = (text) => until(`a tile with ${text}`, async () => (await page.getByTestId("tiles").textContent()).includes(text));

test("the page shows 2.75 of 3 GPUs, three running, one waiting with its reason", async () => {
  await live(page);
  await tile("2.75 of 3");
  await tile("3 tasksrunning");
  await page.getByTestId("waiting").getByText("single_gpu waits in single_gpu: needs 1 GPU").waitFor();
});

test("slices fill as tasks allocate, up to the limit", async () => {
  const quarter = page.locator('[data-task="quarter_gpu"]');
  await until("the quarter to be full", async () => Number(await quarter.getAttribute("data-used")) === 10 * 2 ** 30);
  const used = () => {
    const [gpu] = cantle.json("gpus").filter((found) => found.index === 2);
    return gpu.slices.reduce((sum, slice) => sum + slice.memory_used_bytes, 0);
  };
  await until("the half next to it to be full", () => used() === 30 * 2 ** 30);
  await page.locator('[data-gpu="2"]', { hasText: "30 GiB of 40 GiB used" }).waitFor();
});

test("hover and focus show limit, use, enforcement and processes", async () => {
  const slice = page.locator('[data-task="half_gpu"]');
  // The pointer loses the slice when the page moves it.
  const shows = (what, line) =>
    until(what, async () => {
      await slice.hover();
      return line.test(await slice.locator(".tip").innerText());
    });
  await shows("the slice to be full", /Limit\s*20 GiB[\s\S]*Used\s*20 GiB/);
  // Which of the two it is depends on who runs the tests: root's tasks have mounts of their own.
  await shows("what enforces it", /Enforced\s*by (mounts|preload: can be evaded)/);
  assert.ok(truth().gpus.flatMap((gpu) => gpu.processes).some((process) => process.used_bytes === 20 * 2 ** 30), "as the driver itself says");
  // The pid in the task's own namespace, in which the supervisor is 1.
  await shows("its process", /pid 2\s*20 GiB/);
});

test("a slice grows while the page is open", async () => {
  cantle.cli("stop", cantle.json("tasks").find((task) => task.name === "quarter_gpu").id);
  const grow = [
    "import ctypes, time",
    "cuda, context, pointer = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64()",
    "cuda.cuInit(0)",
    "cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)",
    "cuda.cuCtxSetCurrent(context)",
    // For longer than a busy machine needs to show four sizes.
    "for _ in range(144):",
    "    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0",
    "    print('one more', flush=True)",
    "    time.sleep(0.5)",
    "time.sleep(600)",
  ].join("\n");
  const id = cantle.submit("quarter_gpu", "grower", "python3", "-c", grow);
  const seen = new Set();
  await until("four sizes of the slice", async () => {
    const used = await page.locator('[data-task="grower"]').getAttribute("data-used", { timeout: 1000 }).catch(() => null);
    if (used) seen.add(Number(used));
    return seen.size >= 4;
  });
  const sizes = [...seen];
  assert.deepEqual(sizes, sizes.toSorted((a, b) => a - b), "it only grows");
  await page.locator('[data-task="grower"]').click();
  await page.getByTestId("task").waitFor();
  await until("its address", () => page.url().endsWith(`/ui/tasks/${id}`));
  await until("its output", async () => (await page.getByTestId("log").textContent()).includes("one more"));
  for (const step of ["created", "queued", "placed", "started"]) await page.getByTestId("timeline").getByText(step).first().waitFor();
  await until("the first GPU memory in the timeline", async () => /first GPU memory\d/.test(await page.getByTestId("timeline").textContent()));
  await until("a chart", async () => (await page.locator(".chart canvas").count()) === 1);
});

test("a task that waits says why, and the command line says the same", async () => {
  const id = cantle.json("tasks", "--status", "queued")[0].id;
  await page.goto(`${cantle.url}/ui/tasks/${id}`);
  await page.getByTestId("why").getByText("needs 1 GPU").first().waitFor();
  await until("the reason of the command line", async () => (await page.getByTestId("why").textContent()).includes(cantle.json("why", id)[0].reason));
  await until("its command line", async () => (await page.getByTestId("cli").textContent()) === `$ cantle why ${id}`);
});

test("a task is stopped after a yes", async () => {
  const id = cantle.json("tasks").find((task) => task.name === "half_gpu").id;
  await page.goto(`${cantle.url}/ui/tasks/${id}`);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  assert.ok((await page.getByRole("dialog").textContent()).includes(`$ cantle stop ${id}`));
  await page.getByRole("button", { name: "Yes, stop" }).click();
  await page.getByTestId("task").getByText("stopped").waitFor();
  const [task] = cantle.json("tasks", id);
  assert.equal(task.state, "stopped");
});

test("a stopped task can be requeued and run again", async () => {
  await page.getByRole("button", { name: "Requeue" }).click();
  assert.ok((await page.getByRole("dialog").textContent()).includes("loses the artifacts of its last run. Output and graphs stay with that run"));
  await page.getByRole("button", { name: "Yes, requeue" }).click();
  await page.getByTestId("task").getByText("running").waitFor();
  const runs = page.getByTestId("runs");
  await runs.locator('[data-run="2"]').getByText("running").waitFor();
  await runs.locator('[data-run="1"]').getByText("stopped").first().waitFor();
  await page.getByRole("button", { name: "Run again" }).hover();
  const line = /^\$ cantle submit --queue half_gpu .*--name half_gpu .*-- python3 .*fill_slice\.py --hold 600$/;
  await until("its command line", async () => line.test(await page.getByTestId("cli").textContent()));
  await page.getByRole("button", { name: "Run again" }).click();
  await until("a second one", () => cantle.json("tasks").filter((task) => task.name === "half_gpu").length === 2);
});

test("a GPU in MIG mode, of an agent next to it, is drawn with its instance", async () => {
  const words = [cantle.env.CANTLE, "daemon", "--dynamic-gpus", "--gpus", "3", "--queue", "mig=task", "--create-queue"];
  beside = cantle.spawn(words);
  await until("its queue", () => cantle.json("queues").some((queue) => queue.name === "mig"));
  cantle.cli("submit", "--queue", "mig", "--mig-profile", "3g.40gb", "--name", "instance", "--", "sleep", "600");
  await page.goto(`${cantle.url}/ui/gpus`);
  const piece = page.locator('[data-gpu="3"] [data-task="instance"]');
  await until("its instance", async () => /3g\.40gb/.test(await piece.textContent({ timeout: 1000 })));
  assert.deepEqual(truth().gpus[3].mig.map((instance) => instance.profile), ["3g.40gb"], "as the driver itself says");
});

test("nothing went wrong in the page", () => assert.deepEqual(page.problems, []));
