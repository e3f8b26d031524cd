// Search in pages that are opened as files: a browser starts no worker there, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }));
      this.inside = frame.contentWindow;
      const load = (src) => new Promise((resolve, reject) => {
        const script = Object.assign(this.inside.document.createElement("script"), { src, onload: resolve, onerror: reject });
        this.inside.document.body.append(script);
      });
      this.inside.importScripts = (...all) => all.reduce((before, src) => before.then(() => load(src)), Promise.resolve());
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = load(String(address));
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
