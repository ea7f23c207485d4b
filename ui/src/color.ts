// The same thing has the same colour on every page and every day: its name decides.

/** How many there are in style.css (`--c0` …). */
const COLORS = 10;

export function colorOf(key: string): string {
  let hash = 0x811c9dc5;
  for (let i = 0; i < key.length; i += 1) {
    hash = Math.imul(hash ^ key.charCodeAt(i), 0x01000193);
  }
  // FNV's low bits of similar short names are close to each other; mix before taking the remainder.
  hash ^= hash >>> 15;
  hash = Math.imul(hash, 0x2c1b3c6d);
  hash ^= hash >>> 12;
  return `var(--c${(hash >>> 0) % COLORS})`;
}
