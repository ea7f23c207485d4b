// The command line that does the same as a button or shows the same as a page.

/** Quotes an argument for a POSIX shell, if it needs that. */
export function quote(argument: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", `'\\''`)}'`;
}

export function cantle(...args: string[]): string {
  return ["cantle", ...args.map(quote)].join(" ");
}
