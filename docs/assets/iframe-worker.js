// Search without a server. A browser starts no worker for a page that was opened from the disk (file://), and the
// theme searches in one. There, and only there, this lets the worker's script run in a hidden frame instead:
//
//     page ── postMessage ──> frame: "message" event of its window
//     page <── "message" event of this object ── frame: its own postMessage
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.onerror = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.answer(data);
      inner.importScripts = (...urls) => Promise.all(urls.map((each) => load(inner, each)));
      this.ready = load(inner, url);
    }
    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    terminate() {
      this.frame.remove();
    }
  };

  function load(inner, url) {
    return new Promise((done, failed) => {
      const script = inner.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = done;
      script.onerror = failed;
      inner.document.body.appendChild(script);
    });
  }
}
