// Many points on a canvas: WebGL where there is one, a plain canvas where there is none. It knows no labels and no mouse.

const VERTEX = `
attribute vec2 before;
attribute vec2 after;
attribute vec4 color;
uniform vec4 camera; // middle x, y; clip units per map unit, x and y
uniform float mixed; // 0: before, 1: after
uniform float size;
varying vec4 paint;
void main() {
  vec2 place = (mix(before, after, mixed) - camera.xy) * camera.zw;
  gl_Position = vec4(place, 0.0, 1.0);
  gl_PointSize = size;
  paint = color;
}`;

// A soft edge one pixel wide; colors are premultiplied, as the blending expects.
const FRAGMENT = `
precision mediump float;
varying vec4 paint;
uniform float blur; // of the edge, as a share of the point; a name that the other shader has would need its precision
uniform float opacity;
void main() {
  float edge = 1.0 - smoothstep(0.5 - blur, 0.5, length(gl_PointCoord - 0.5));
  float alpha = paint.a * opacity * edge;
  gl_FragColor = vec4(paint.rgb * alpha, alpha);
}`;

/** Return a painter with a canvas of its own. */
export function makePainter() {
  const canvas = document.createElement("canvas");
  // A browser may show the canvas again without asking for a drawing, for example when something opens above it.
  const gl = canvas.getContext("webgl", { antialias: false, alpha: true, premultipliedAlpha: true, preserveDrawingBuffer: true });
  if (gl) {
    const painter = new GlPainter(canvas, gl);
    if (painter.works) return painter;
  }
  return new PlainPainter(document.createElement("canvas")); // A canvas that was asked for WebGL gives nothing else.
}

class GlPainter {
  constructor(canvas, gl) {
    this.canvas = canvas;
    this.gl = gl;
    this.count = 0;
    this.works = this.#build();
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => {
      this.#build();
      if (this.before) this.setPlaces(this.before, this.after);
      if (this.colors) this.setColors(this.colors);
    });
  }

  #build() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return false;
    gl.useProgram(program);
    this.uniforms = Object.fromEntries(["camera", "mixed", "size", "blur", "opacity"].map((name) => [name, gl.getUniformLocation(program, name)]));
    this.buffers = {};
    for (const [name, size, kind] of [["before", 2, gl.FLOAT], ["after", 2, gl.FLOAT], ["color", 4, gl.UNSIGNED_BYTE]]) {
      const place = gl.getAttribLocation(program, name);
      this.buffers[name] = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, size, kind, kind === gl.UNSIGNED_BYTE, 0, 0);
    }
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    return true;
  }

  #fill(name, array) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, array, this.gl.STATIC_DRAW);
  }

  setPlaces(before, after) {
    [this.before, this.after, this.count] = [before, after, after.length / 2];
    this.#fill("before", before);
    this.#fill("after", after);
  }

  setColors(colors) {
    this.colors = colors;
    this.#fill("color", colors);
  }

  draw({ x, y, scale, mixed, size, opacity, ratio }) {
    const { gl, canvas, uniforms } = this;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (!this.count || !this.colors) return;
    gl.uniform4f(uniforms.camera, x, y, (2 * scale * ratio) / canvas.width, (2 * scale * ratio) / canvas.height);
    gl.uniform1f(uniforms.mixed, mixed);
    gl.uniform1f(uniforms.size, size * ratio);
    gl.uniform1f(uniforms.blur, 1 / (size * ratio));
    gl.uniform1f(uniforms.opacity, opacity);
    gl.drawArrays(gl.POINTS, 0, this.count);
  }
}

class PlainPainter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.after = new Float32Array(0);
  }

  setPlaces(before, after) {
    [this.before, this.after] = [before, after];
  }

  setColors(colors) {
    this.colors = colors;
  }

  draw({ x, y, scale, mixed, size, opacity, ratio }) {
    const { context, canvas, before, after, colors } = this;
    if (!context) return;
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!colors) return;
    context.globalAlpha = opacity;
    const side = size * ratio;
    for (let i = 0; i < after.length / 2; i++) {
      const px = ((1 - mixed) * before[2 * i] + mixed * after[2 * i] - x) * scale * ratio + canvas.width / 2;
      const py = canvas.height / 2 - ((1 - mixed) * before[2 * i + 1] + mixed * after[2 * i + 1] - y) * scale * ratio;
      if (px < 0 || py < 0 || px > canvas.width || py > canvas.height) continue;
      context.fillStyle = `rgb(${colors[4 * i]} ${colors[4 * i + 1]} ${colors[4 * i + 2]})`;
      context.fillRect(px - side / 2, py - side / 2, side, side);
    }
    context.globalAlpha = 1;
  }
}
