// The two functions of Plotly that are used here.
declare module "plotly.js-strict-dist-min" {
  const Plotly: {
    newPlot(element: Element, data: unknown[], layout: object, config: object): Promise<unknown>;
    purge(element: Element): void;
  };
  export default Plotly;
}
