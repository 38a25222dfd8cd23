// The program behind asyncli.lab.libraries.LabJvm:
// java NettyHttp ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE METRICS_PORT
//
// Netty as its examples show, with its NIO transport and default settings. It keeps idle
// connections until the client closes them, so IDLE_S has no effect; nor has DEFLATE. The page of
// metrics is Micrometer's, with those of the JVM and the process that Spring Boot shows.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.micrometer.core.instrument.binder.jvm.ClassLoaderMetrics;
import io.micrometer.core.instrument.binder.jvm.JvmGcMetrics;
import io.micrometer.core.instrument.binder.jvm.JvmMemoryMetrics;
import io.micrometer.core.instrument.binder.jvm.JvmThreadMetrics;
import io.micrometer.core.instrument.binder.system.FileDescriptorMetrics;
import io.micrometer.core.instrument.binder.system.ProcessorMetrics;
import io.micrometer.core.instrument.binder.system.UptimeMetrics;
import io.micrometer.prometheusmetrics.PrometheusConfig;
import io.micrometer.prometheusmetrics.PrometheusMeterRegistry;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpObject;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpServerKeepAliveHandler;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.File;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import javax.net.ssl.SSLException;

public final class NettyHttp {
  private static final byte[] PAGE = "ok\n".getBytes(StandardCharsets.UTF_8);

  /** Answers each request with 200, when all of it has come. To a HEAD the codec sends no body. */
  @ChannelHandler.Sharable
  private static final class Answer extends SimpleChannelInboundHandler<HttpObject> {
    @Override
    protected void channelRead0(ChannelHandlerContext context, HttpObject part) {
      if (!(part instanceof LastHttpContent)) {
        return;
      }
      var response =
          new DefaultFullHttpResponse(
              HttpVersion.HTTP_1_1, HttpResponseStatus.OK, Unpooled.wrappedBuffer(PAGE));
      response.headers().set(HttpHeaderNames.CONTENT_TYPE, "text/plain");
      response.headers().setInt(HttpHeaderNames.CONTENT_LENGTH, PAGE.length);
      context.writeAndFlush(response);
    }

    /** A client that resets its connection is no error of the server. */
    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable error) {
      context.close();
    }
  }

  /** Sets up each connection. */
  private static final class Connection extends ChannelInitializer<SocketChannel> {
    private final SslContext tls;
    private final Answer answer = new Answer();

    Connection(SslContext tls) {
      this.tls = tls;
    }

    @Override
    protected void initChannel(SocketChannel channel) {
      var pipeline = channel.pipeline();
      if (tls != null) {
        pipeline.addLast(tls.newHandler(channel.alloc()));
      }
      pipeline.addLast(new HttpServerCodec(), new HttpServerKeepAliveHandler(), answer);
    }
  }

  private static SslContext tlsOf(String pem) throws SSLException {
    if (pem.isEmpty()) {
      return null;
    }
    return SslContextBuilder.forServer(new File(pem), new File(pem)).build();
  }

  private static void serveMetrics(int port) throws IOException {
    var registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
    new ClassLoaderMetrics().bindTo(registry);
    new JvmGcMetrics().bindTo(registry);
    new JvmMemoryMetrics().bindTo(registry);
    new JvmThreadMetrics().bindTo(registry);
    new FileDescriptorMetrics().bindTo(registry);
    new ProcessorMetrics().bindTo(registry);
    new UptimeMetrics().bindTo(registry);
    var page = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    page.createContext("/metrics", exchange -> send(exchange, registry.scrape()));
    page.start();
  }

  private static void send(HttpExchange exchange, String page) throws IOException {
    var text = page.getBytes(StandardCharsets.UTF_8);
    exchange.getResponseHeaders().set("Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    exchange.sendResponseHeaders(200, text.length);
    try (var body = exchange.getResponseBody()) {
      body.write(text);
    }
  }

  private static void serve(String[] arguments) throws Exception {
    var place = new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1]));
    var backlog = Integer.parseInt(arguments[2]);
    var tls = tlsOf(arguments[4]);
    serveMetrics(Integer.parseInt(arguments[6]));
    new ServerBootstrap()
        .group(new NioEventLoopGroup(1), new NioEventLoopGroup())
        .channel(NioServerSocketChannel.class)
        .option(ChannelOption.SO_BACKLOG, backlog)
        .childHandler(new Connection(tls))
        .bind(place)
        .sync();
  }

  public static void main(String[] arguments) {
    try {
      serve(arguments);
      System.out.println("ready");
    } catch (Exception error) {
      System.err.println(error.getMessage());
      // Threads that were started before it would keep the program alive.
      System.exit(1);
    }
  }
}
