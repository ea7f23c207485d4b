import { bytes, gpuAmount } from "../format";
import { link } from "../route";
import type { ForeignView, GpuView, SliceView, TaskView } from "../types";

/** How many memory slices a MIG GPU has, from what one instance holds of its memory; 8 where nothing tells. */
export function memorySlices(gpu: GpuView): number {
  for (const { mig } of gpu.slices) {
    const gib = mig && /\.(\d+)gb/.exec(mig.profile)?.[1];
    if (mig && gib) return Math.max(mig.start + mig.size, Math.round(gpu.memory_bytes / 2 ** 30 / (Number(gib) / mig.size)));
  }
  for (const { size, milli } of gpu.foreign ?? []) return Math.round((size * 1000) / milli);
  return 8;
}

interface Piece {
  slice: SliceView | null;
  /** The MIG instance of others that it is. */
  foreign?: ForeignView;
  from: number;
  size: number;
}

/** The GPU's memory from left to right, in parts of one: slices, MIG instances of others and what is free between them. */
export function pieces(gpu: GpuView): Piece[] {
  const total = memorySlices(gpu);
  let end = 0;
  const placed = gpu.slices.map((slice): Piece => {
    if (slice.mig) return { slice, from: slice.mig.start / total, size: slice.mig.size / total };
    const piece = { slice, from: end, size: slice.memory_limit_bytes / gpu.memory_bytes };
    end += piece.size;
    return piece;
  });
  for (const foreign of gpu.foreign ?? []) placed.push({ slice: null, foreign, from: foreign.start / total, size: foreign.size / total });
  placed.sort((a, b) => a.from - b.from);
  const all: Piece[] = [];
  let at = 0;
  for (const piece of placed) {
    if (piece.from - at > 0.001) all.push({ slice: null, from: at, size: piece.from - at });
    all.push(piece);
    at = piece.from + piece.size;
  }
  // The rest from rounding to 2 MiB gets no piece of its own.
  if (1 - at > 0.001) all.push({ slice: null, from: at, size: 1 - at });
  return all;
}

const percent = (part: number) => `${(part * 100).toFixed(3)}%`;

const ENFORCED = { mount_namespace: "by mounts", container: "by container mounts", preload: "by preload: can be evaded" };
const PROCESSES_SHOWN = 4;

function processRows(slice: SliceView): [string, string][] {
  const all = slice.processes ?? [];
  const rows = all.slice(0, PROCESSES_SHOWN).map(({ pid, memory_bytes }): [string, string] => [`pid ${pid}`, bytes(memory_bytes)]);
  if (all.length > PROCESSES_SHOWN) rows.push(["", `and ${all.length - PROCESSES_SHOWN} more`]);
  return rows;
}

/** As `cantle gpus -o wide` says it: what was asked for, what was had in the last second, and how long it waited. */
export function computeWords({ mode, request_milli, limit_milli, share_ppm, gate_wait_us }: NonNullable<SliceView["compute"]>): string {
  const limit = limit_milli !== null && limit_milli !== request_milli ? `, at most ${limit_milli / 1000}` : "";
  const had = share_ppm === null ? "" : `, had ${Math.floor(share_ppm / 1000) / 1000}`;
  return `${mode} ${request_milli / 1000}${limit}${had}, waited ${(gate_wait_us / 1e6).toFixed(1)} s`;
}

function Tip({ slice, task }: { slice: SliceView; task: TaskView | undefined }) {
  const rows: [string, string][] = [
    ["Task", task?.name ?? slice.task],
    ["Limit", bytes(slice.memory_limit_bytes)],
    ["Used", bytes(slice.memory_used_bytes)],
    ["Share", gpuAmount(slice.milli)],
  ];
  if (slice.compute) rows.push(["Compute", computeWords(slice.compute)]);
  if (slice.enforcement) rows.push(["Enforced", ENFORCED[slice.enforcement]]);
  if (slice.mig) rows.push(["MIG", `${slice.mig.profile} at ${slice.mig.start}`]);
  if (task?.queue) rows.push(["Queue", task.queue]);
  if (task?.project) rows.push(["Project", task.project]);
  rows.push(...processRows(slice));
  return (
    <span class="tip" aria-hidden="true">
      {rows.map(([name, value]) => (
        <span key={name}>
          <b>{name}</b>
          {value}
        </span>
      ))}
    </span>
  );
}

/** A GPU drawn as its memory, with the slices in it; a MIG GPU with its real geometry. */
export function GpuBar(props: { gpu: GpuView; find: (id: string) => TaskView | undefined; colorOf: (slice: SliceView) => string }) {
  const { gpu, find, colorOf } = props;
  const total = gpu.mode === "mig" ? memorySlices(gpu) : 0;
  return (
    <div class="gpubar" data-testid="gpubar">
      {Array.from({ length: Math.max(0, total - 1) }, (_, i) => (
        <i key={i} class="tick" style={{ left: percent((i + 1) / total) }} aria-hidden="true" />
      ))}
      {pieces(gpu).map(({ slice, foreign, from, size }) => {
        const place = { left: percent(from), width: percent(size) };
        if (foreign) {
          return (
            <span key={`foreign${from}`} class="piece foreign" style={place} data-testid="foreign">
              <span class="label">
                <b>{foreign.profile}</b> foreign
              </span>
            </span>
          );
        }
        if (!slice) {
          return (
            <span key={`free${from}`} class="piece free" style={place}>
              <span class="label">{bytes(size * gpu.memory_bytes)} free</span>
            </span>
          );
        }
        const task = find(slice.task);
        const name = task?.name ?? slice.task.slice(0, 8);
        const used = Math.min(1, slice.memory_used_bytes / Math.max(1, slice.memory_limit_bytes));
        const says = `${name}: ${bytes(slice.memory_used_bytes)} used of ${bytes(slice.memory_limit_bytes)}, ${gpuAmount(slice.milli)}`;
        return (
          <a
            key={slice.lease}
            class="piece"
            href={link(`tasks/${slice.task}`)}
            aria-label={says}
            style={{ ...place, "--slice": colorOf(slice) }}
            data-used={slice.memory_used_bytes}
            data-task={name}
          >
            <span class="used" style={{ width: percent(used) }} />
            <span class="label">
              {slice.mig && <b>{slice.mig.profile}</b>} {name}
            </span>
            <Tip slice={slice} task={task} />
          </a>
        );
      })}
    </div>
  );
}
