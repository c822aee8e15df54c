import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog over SQLite. Arguments: port, file of the database, folder of the warehouse. */
public class IcebergRest {
  public static void main(String[] args) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.initialize(
        "rest",
        Map.of(
            CatalogProperties.URI, "jdbc:sqlite:" + args[1] + "?busy_timeout=30000",
            "jdbc.schema-version", "V1",
            CatalogProperties.WAREHOUSE_LOCATION, args[2],
            CatalogProperties.FILE_IO_IMPL, "org.apache.iceberg.TestTables$LocalFileIO"));
    Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])));
    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    server.setHandler(context);
    server.start();
    server.join();
  }
}
