// The same thing has the same color on every page and every day: its name decides, unless a neighbor has that color.

/** How many there are in style.css (`--c0` …). */
const COLORS = 10;

/** FNV-1a, its bits mixed once more: those of similar short names are close to each other. */
function hash(key: string): number {
  let bits = 0x811c9dc5;
  for (let i = 0; i < key.length; i += 1) {
    bits = Math.imul(bits ^ key.charCodeAt(i), 0x01000193);
  }
  bits = Math.imul(bits ^ (bits >>> 15), 0x2c1b3c6d);
  return (bits ^ (bits >>> 12)) >>> 0;
}

/** Colors for all that is in sight: as long as there are enough, no two are the same. */
export function colorsFor(keys: Iterable<string>): (key: string) => string {
  const taken = new Map<string, number>();
  const uses = new Array<number>(COLORS).fill(0);
  for (const key of [...new Set(keys)].sort()) {
    const least = Math.min(...uses);
    let color = hash(key) % COLORS;
    while (uses[color]! > least) color = (color + 1) % COLORS;
    uses[color]! += 1;
    taken.set(key, color);
  }
  return (key) => `var(--c${taken.get(key) ?? 0})`;
}
