import type { ComponentChildren } from "preact";

/** A table that scrolls by itself where the page is narrow. */
export function Table({ label, heads, children, testid }: { label?: string; heads: string[]; children: ComponentChildren; testid?: string }) {
  return (
    <div class="wide" tabIndex={0}>
      <table aria-label={label} data-testid={testid}>
        <thead>
          <tr>
            {heads.map((head) => (
              <th key={head} scope="col">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
