import { type Arrow, layOut, type Size } from "./layout";

self.onmessage = (event: MessageEvent<{ nodes: Size[]; edges: Arrow[] }>) => {
  self.postMessage(layOut(event.data.nodes, event.data.edges));
};
