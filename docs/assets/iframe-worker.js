/* Browsers start no workers in pages opened from a folder (file://). The search then runs in a hidden frame instead. */
if (location.protocol === "file:" && window.Worker) {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      const frame = (this.frame = document.createElement("iframe"));
      frame.hidden = true;
      document.body.appendChild(frame);
      const scope = frame.contentWindow;
      const load = (address, then) => {
        const script = frame.contentDocument.createElement("script");
        script.src = address;
        script.onload = then;
        frame.contentDocument.body.appendChild(script);
      };
      scope.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => new Promise((then) => load(address, then))), Promise.resolve());
      scope.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      load(url, () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (!this.ready) { this.waiting.push(data); return; }
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() { this.frame.remove(); }
  };
}
