// A page that is opened from a folder may start no worker, and the search of the theme runs in one.
// There, what the worker would run is run in a hidden frame.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super()
    const frame = document.body.appendChild(document.createElement("iframe"))
    frame.hidden = true
    addEventListener("message", event => {
      if (event.source !== frame.contentWindow) return
      this.dispatchEvent(new MessageEvent("message", { data: event.data }))
    })
    this.frame = frame
    this.ready = new Promise(resolve => {
      const inside = frame.contentDocument
      inside.open()
      frame.contentWindow.postMessage = parent.postMessage.bind(parent)
      inside.close()
      const script = inside.createElement("script")
      script.onload = resolve
      script.src = url
      inside.body.appendChild(script)
    })
  }

  postMessage(data) {
    this.ready.then(() => {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    })
  }

  terminate() {
    this.frame.remove()
  }
}
if (location.protocol === "file:") window.Worker = window.IFrameWorker
