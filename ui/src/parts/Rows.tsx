// A table that draws only the rows in sight, so that 10,000 of them scroll smoothly.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { param, setParam } from "../route";

export interface Column<T> {
  id: string;
  head: string;
  /** A CSS grid track. */
  width: string;
  cell: (item: T) => ComponentChildren;
  /** What to sort by; without it the column can't be sorted. */
  sort?: (item: T) => string | number;
  /** Where the page is narrow: left out, or below the others in a line of its own. */
  narrow?: "hidden" | "below";
}

/** On a narrow page a flexible column gets its part of what there is, however little. */
const flexible = <T,>(column: Column<T>): string => (column.width.includes("fr") ? "minmax(0, 1fr)" : column.width);

const ROW_PX = 36;
const TALL_ROW_PX = 60;
const SPARE_ROWS = 10;

const narrowPage = matchMedia("(width < 48rem)");
const isNarrow = signal(narrowPage.matches);
narrowPage.addEventListener("change", () => (isNarrow.value = narrowPage.matches));

/** Sorts by the URL's `sort`: a column's id, with `-` in front for the other way round. */
function sorted<T>(items: T[], columns: Column<T>[]): T[] {
  const wanted = param("sort");
  const by = columns.find((column) => column.id === wanted.replace(/^-/, ""))?.sort;
  if (!by) return items;
  const direction = wanted.startsWith("-") ? -1 : 1;
  const compare = (a: string | number, b: string | number) => (a < b ? -1 : a > b ? 1 : 0);
  return [...items].sort((a, b) => direction * compare(by(a), by(b)));
}

function Head<T>({ column, index }: { column: Column<T>; index: number }) {
  const wanted = param("sort");
  const order = wanted === column.id ? "ascending" : wanted === `-${column.id}` ? "descending" : "none";
  const next = order === "none" ? column.id : order === "ascending" ? `-${column.id}` : "";
  return (
    <div role="columnheader" aria-colindex={index + 1} aria-sort={column.sort ? order : undefined} class={column.narrow}>
      {column.sort ? (
        <button type="button" class="quiet" onClick={() => setParam("sort", next)}>
          {column.head}
          <span aria-hidden="true">{order === "ascending" ? " ↑" : order === "descending" ? " ↓" : ""}</span>
        </button>
      ) : (
        column.head
      )}
    </div>
  );
}

export function Rows<T>(props: { label: string; items: T[]; columns: Column<T>[]; keyOf: (item: T) => string; empty: string }) {
  const { label, columns, keyOf, empty } = props;
  const items = sorted(props.items, columns);
  const body = useRef<HTMLDivElement>(null);
  const row_px = isNarrow.value ? TALL_ROW_PX : ROW_PX;
  const [range, setRange] = useState({ from: 0, to: 60 });
  useEffect(() => {
    const look = () => {
      const top = body.current?.getBoundingClientRect().top ?? 0;
      const from = Math.max(0, Math.floor(-top / row_px) - SPARE_ROWS);
      const to = Math.ceil((innerHeight - top) / row_px) + SPARE_ROWS;
      setRange((old) => (old.from === from && old.to === to ? old : { from, to }));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [row_px]);
  const shown = items.slice(range.from, range.to);
  const from = Math.min(range.from, items.length);
  const tracks = {
    "--tracks": columns.map((column) => column.width).join(" "),
    "--tracks-narrow": columns.filter((column) => !column.narrow).map(flexible).join(" "),
  };
  return (
    <div class="rows" role="table" aria-label={label} aria-rowcount={items.length + 1} style={tracks}>
      <div role="rowgroup" class="head">
        <div role="row" aria-rowindex={1}>
          {columns.map((column, index) => (
            <Head key={column.id} column={column} index={index} />
          ))}
        </div>
      </div>
      <div role="rowgroup" ref={body} style={{ height: `${items.length * row_px}px` }} class="body">
        {shown.map((item, index) => (
          <div key={keyOf(item)} role="row" aria-rowindex={from + index + 2} style={{ top: `${(from + index) * row_px}px` }}>
            {columns.map((column, at) => (
              <div key={column.id} role="cell" aria-colindex={at + 1} class={column.narrow}>
                {column.cell(item)}
              </div>
            ))}
          </div>
        ))}
      </div>
      {items.length === 0 && <p class="muted pad">{empty}</p>}
    </div>
  );
}
